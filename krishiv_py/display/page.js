const main=document.getElementById('now'),news=document.getElementById('news'),open=new Map();
async function ask(section,details){
  const p=details.querySelector('p'),name=section.dataset.query;
  p.textContent=open.get(name)||'…';
  try{const r=await fetch('why?query='+encodeURIComponent(name));open.set(name,await r.text());p.textContent=open.get(name)}
  catch(e){p.textContent='The session does not answer.'}
}
function wire(){
  for(const section of main.querySelectorAll('section')){
    const details=section.querySelector('.why');
    if(open.has(section.dataset.query)){details.open=true;details.querySelector('p').textContent=open.get(section.dataset.query)}
    details.addEventListener('toggle',()=>{if(details.open)ask(section,details);else open.delete(section.dataset.query)});
  }
}
async function again(){
  try{
    const r=await fetch('now');
    if(!r.ok)throw 0;
    const text=await r.text(),at=[...main.querySelectorAll('.scroll')].map(e=>e.scrollLeft);
    main.innerHTML=text;
    main.querySelectorAll('.scroll').forEach((e,i)=>{e.scrollLeft=at[i]||0});
    wire();
    news.textContent='updated '+new Date().toLocaleTimeString();
  }catch(e){news.textContent='The session does not answer: it has ended, or cannot be reached.'}
  setTimeout(again,document.hidden?10000:2000);
}
wire();setTimeout(again,2000);
