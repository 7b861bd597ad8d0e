const main=document.getElementById('now'),news=document.getElementById('news'),open=new Map();
async function ask(section,details){
  const p=details.querySelector('p'),name=section.dataset.query;
  p.textContent=open.get(name)||'…';
  try{const r=await fetch('why?query='+encodeURIComponent(name));open.set(name,await r.text());p.textContent=open.get(name)}
  catch(e){p.textContent='The session does not answer.'}
}
const whole=new Set();
function unfold(){
  const section=location.hash&&document.getElementById(location.hash.slice(1)),folded=section&&section.querySelector('.whole');
  if(folded)folded.open=true;
}
addEventListener('hashchange',unfold);
function wire(){
  for(const folded of main.querySelectorAll('.whole')){
    const name=folded.parentNode.dataset.query;
    folded.open=whole.has(name);
    folded.addEventListener('toggle',()=>{if(folded.open)whole.add(name);else whole.delete(name)});
  }
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
wire();unfold();setTimeout(again,2000);
